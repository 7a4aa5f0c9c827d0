// A sample in a list: its messages are fetched once, when it is opened.
import { fetchMarkup } from "../../lib/part.js";

export function openSamples(section) {
  section.addEventListener("toggle", async (event) => {
    const sample = event.target, address = sample.dataset.opens;
    if (!address || !sample.open || "isRead" in sample.dataset) return;
    sample.dataset.isRead = "";
    try {
      const next = await fetchMarkup(address);
      sample.querySelector("[data-opened]").replaceWith(document.adoptNode(next.querySelector("[data-opened]")));
    } catch {
      delete sample.dataset.isRead; // fetched again on the next opening; until then it has the link to its page
    }
  }, true);
}
