// Shows the server's findings at their fields: errors, and settings without effect in this job.

// Whether a setting differs from the one that the server rendered.
export function hasChanges(form) {
  return [...form.querySelectorAll("[data-kind]")].some((input) => {
    if (input.options) return input.selectedIndex !== Math.max(0, [...input.options].findIndex((each) => each.defaultSelected));
    return input.type === "checkbox" ? input.checked !== input.defaultChecked : input.value !== input.defaultValue;
  });
}

export function showJudged(form, judged) {
  const told = new Map([...judged.children].map((each) => [each.dataset.field, each]));
  for (const input of form.querySelectorAll("[data-kind]")) {
    const found = told.get(input.id);
    showIdle(input, Boolean(found && "idle" in found.dataset));
    showWrong(input, found?.childNodes.length ? found : null);
  }
}

function showIdle(input, isIdle) {
  if (input === document.activeElement) return; // it would lose the focus
  input.disabled = isIdle;
  input.closest(".field").classList.toggle("idle", isIdle);
}

function showWrong(input, found) {
  const field = input.closest(".field");
  let told = document.getElementById(`${input.id}-error`);
  if ((told?.textContent ?? "") === (found?.textContent ?? "")) return;
  field.classList.toggle("wrong", Boolean(found));
  const others = input.getAttribute("aria-describedby").split(" ").filter((id) => id !== `${input.id}-error`);
  input.setAttribute("aria-describedby", (found ? [`${input.id}-error`, ...others] : others).join(" "));
  if (found) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
  if (!found) return told?.remove();
  if (!told) {
    told = Object.assign(document.createElement("p"), { className: "error", id: `${input.id}-error` });
    field.querySelector(".help").before(told);
  }
  told.replaceChildren(...document.adoptNode(found).childNodes);
}
