// A link with data-dialog opens that dialog instead of its page. Without this script the page asks the same question.
export function wireDialogs() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-dialog]");
    const dialog = link && document.getElementById(link.dataset.dialog);
    if (!dialog || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    dialog.showModal();
    dialog.addEventListener("close", () => document.querySelector(`[data-dialog="${dialog.id}"]`)?.focus(), { once: true });
  });
}
