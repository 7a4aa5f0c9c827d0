// Copies a button's own text (data-copy) or that of another element (data-copy-from).
import { say } from "./toasts.js";

async function put(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // plain http has no clipboard API
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function wireCopying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-from]");
    if (!button) return;
    const label = button.querySelector("span");
    const before = button.dataset.label ??= label.textContent;
    try {
      await put(button.dataset.copy ?? document.getElementById(button.dataset.copyFrom).textContent);
      label.textContent = "copied";
      say("copied");
      button.classList.add("done");
    } catch {
      label.textContent = "copy failed";
      say("copy failed");
    }
    setTimeout(() => { label.textContent = before; button.classList.remove("done"); }, 1600);
  });
}
