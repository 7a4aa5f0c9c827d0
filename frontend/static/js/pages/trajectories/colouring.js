// Switches the colouring: tokens have the classes of all colourings, so a switch sets one attribute and the URL.
export function chooseColouring(box) {
  const choices = box.querySelector(".colourings");
  choices.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    box.dataset.colour = link.dataset.colouring;
    for (const each of choices.children) each.toggleAttribute("aria-current", each === link);
    link.setAttribute("aria-current", "true");
    history.replaceState(null, "", link.search + location.hash);
  });
}
