// Result messages: over the page, so that nothing moves, and announced to screen readers. Errors, and messages with Undo,
// stay until closed; others disappear after a while without the pointer on them.
const STAYS_MS = 12_000;
const AGAIN_MS = 1_000;

export function showToasts() {
  const list = document.querySelector(".toasts");
  if (!list) return;
  const toasts = [...list.children];
  list.replaceChildren(); // a live region announces later changes only, not its initial content
  requestAnimationFrame(() => { for (const toast of toasts) list.append(closable(toast)); });
}

// Shows one more error, which stays until it is closed.
export function showError(text) {
  let list = document.querySelector(".toasts");
  if (!list) {
    list = Object.assign(document.createElement("ul"), { className: "notices toasts" });
    list.setAttribute("role", "status");
    document.querySelector("main").prepend(list);
  }
  const toast = Object.assign(document.createElement("li"), { className: "notice error" });
  toast.append(Object.assign(document.createElement("span"), { textContent: text }));
  requestAnimationFrame(() => list.replaceChildren(closable(toast)));
}

function closable(toast) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "icon-button small", textContent: "×" });
  button.setAttribute("aria-label", "Close");
  button.addEventListener("click", () => toast.remove());
  toast.append(button);
  if (!toast.matches(".error, .warning") && !toast.querySelector("form")) leaveLater(toast, STAYS_MS);
  return toast;
}

function leaveLater(toast, ms) {
  setTimeout(() => { if (toast.matches(":hover, :focus-within")) leaveLater(toast, AGAIN_MS); else toast.remove(); }, ms);
}

let spoken = null;

// Announces `text` politely to screen readers.
export function say(text) {
  if (!spoken) {
    spoken = Object.assign(document.createElement("p"), { className: "unseen" });
    spoken.setAttribute("role", "status");
    document.body.append(spoken);
  }
  requestAnimationFrame(() => { spoken.textContent = text; });
}
