// The last stretch of the timeline grows while the page is open, and the others and the marks make room for it: as
// backend/pages/timeline.py lays them out, from the seconds that it gives.
import { span } from "../lib/format.js";

const LEAST = 0.8; // per cent of the bar
const arrivedAt = new WeakMap(); // by the bar as the server drew it
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
