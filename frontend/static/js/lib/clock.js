// Keeps times up to date while the page is open: growing ages, and local times with UTC in parentheses. The server sends
// UTC; times in [data-utc] stay in UTC, to be compared with other systems.
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

// Converts the times in `root` to the user's time zone. No change if that is UTC.
export function tellHere(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([data-here])")) {
    const at = new Date(time.dateTime), text = time.textContent;
    if (!at.getTimezoneOffset() || time.closest("[data-utc]")) continue; // or not a time
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
