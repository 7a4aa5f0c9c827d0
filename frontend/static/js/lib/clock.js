// Ages that stay true while the page is open.
import { ago } from "./format.js";

export function keepAges() {
  setInterval(() => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const text = ago(Date.parse(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  }, 10_000);
}
