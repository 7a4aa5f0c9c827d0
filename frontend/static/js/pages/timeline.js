// The last segment of the timeline grows while the page is open, and the other segments and marks shrink, by the layout
// rules of backend/pages/job/panels/timeline.py.
import { span } from "../lib/format.js";

const LEAST = 0.8; // per cent of the bar
const arrivedAt = new WeakMap(); // by bar element
const percent = (value) => `${value.toFixed(3)}%`;

export function growTimeline(now = Date.now()) {
  const track = document.querySelector("[data-track]");
  const last = track?.querySelector("rect.open");
  if (!last) return;
  if (!arrivedAt.has(track)) arrivedAt.set(track, now);
  const grown = (now - arrivedAt.get(track)) / 1000;
  const stretches = [...track.querySelectorAll("rect")];
  const seconds = stretches.map((each) => Number(each.dataset.seconds) + (each === last ? grown : 0));
  const whole = seconds.reduce((sum, each) => sum + each, 0) || 1;
  const widths = seconds.map((each) => Math.max(LEAST, 100 * each / whole));
  const scale = 100 / widths.reduce((sum, each) => sum + each, 0);
  let x = 0;
  stretches.forEach((each, i) => {
    each.setAttribute("x", percent(x));
    each.setAttribute("width", percent(widths[i] * scale));
    x += widths[i] * scale;
  });
  for (const mark of track.querySelectorAll("[data-at]")) {
    mark.setAttribute(mark.localName === "circle" ? "cx" : "x", percent(Math.min(99.7, Math.max(0.3, 100 * mark.dataset.at / whole))));
  }
  const lasted = span(seconds.at(-1));
  for (const place of document.querySelectorAll("[data-lasted]")) if (place.textContent !== lasted) place.textContent = lasted;
}
