// A link with data-ask opens its page's confirmation in a dialog, freshly fetched. Without this script, or if fetching
// fails, the link opens the page itself.
import { fetchMarkup } from "./part.js";

export function wireQuestions() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-ask]");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    if (link.getAttribute("aria-busy") !== "true") ask(link);
  });
}

async function ask(link) {
  link.setAttribute("aria-busy", "true");
  try {
    const page = await fetchMarkup(link.href);
    show(link, page.querySelector("[data-question]"));
  } catch {
    location.assign(link.href);
  }
  link.removeAttribute("aria-busy");
}

function show(link, question) {
  const dialog = document.createElement("dialog");
  const title = Object.assign(document.createElement("h2"), { id: "question-title", textContent: question.dataset.question });
  dialog.setAttribute("aria-labelledby", title.id);
  dialog.append(title, ...document.adoptNode(question).childNodes);
  const keep = dialog.querySelector("[data-keep]");
  const stay = Object.assign(document.createElement("button"), { type: "button", className: keep.className, textContent: keep.textContent, autofocus: true });
  stay.addEventListener("click", () => dialog.close());
  keep.replaceWith(stay);
  dialog.addEventListener("submit", () => { for (const button of dialog.querySelectorAll("button")) button.disabled = true; });
  dialog.addEventListener("close", () => { dialog.remove(); focusAgain(link); });
  document.body.append(dialog);
  dialog.showModal();
}

// The link may have been replaced while the dialog was open.
function focusAgain(link) {
  (link.isConnected ? link : document.querySelector(`a[data-ask][href="${CSS.escape(link.getAttribute("href"))}"]`))?.focus();
}
