// Times that stay true while the page is open: ages that grow, and the reader's own clock with UTC beside. Pages come with
// UTC; what stands in [data-utc] is compared with other places and keeps it.
import { ago } from "./format.js";

const CLOCK = /^\d\d:\d\d:\d\d$/, DAY = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/;
const two = (value) => String(value).padStart(2, "0");
const clock = (at) => [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(at)}`;

export function keepAges() {
  setInterval(() => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const text = ago(Date.parse(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  }, 10_000);
}

// `root` as who reads it has it on the wall. Where that is UTC nothing changes.
export function tellHere(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([data-here])")) {
    const at = new Date(time.dateTime), text = time.textContent;
    if (!at.getTimezoneOffset() || time.closest("[data-utc]")) continue; // or no time at all
    const utc = at.toISOString().slice(0, 19).replace("T", " ");
    time.dataset.here = "";
    if (CLOCK.test(text)) time.textContent = clock(at);
    else if (DAY.test(text)) time.textContent = `${day(at)} (${utc.slice(11)} UTC)`;
    time.title = `${day(at)} here, ${utc} UTC`;
  }
  for (const words of root.querySelectorAll("[data-zone]:not([data-here])")) {
    if (new Date().getTimezoneOffset() === 0) continue;
    words.dataset.here = "";
    words.textContent = "times in your time zone; hover for UTC";
  }
}
