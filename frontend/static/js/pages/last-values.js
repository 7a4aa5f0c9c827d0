// The last value of each series, at its chart and in the table of all series.
import { number, reward } from "../lib/format.js";

export function showLastValues(news) {
  for (const [key, points] of Object.entries(news)) showLast(key, points.at(-1));
}

function showLast(key, [step, value]) {
  const name = CSS.escape(key);
  if (!document.querySelector(`[data-last-step="${name}"]`)) addRow(key);
  for (const place of document.querySelectorAll(`[data-last="${name}"]`)) place.textContent = place.closest('[data-chart="reward"]') ? reward(value) : number(value);
  for (const place of document.querySelectorAll(`[data-last-step="${name}"]`)) place.textContent = step;
}

// A series without points when the page was loaded.
function addRow(key) {
  const body = document.querySelector("[data-metrics] tbody");
  if (!body) return;
  const row = document.getElementById("metric-row").content.cloneNode(true).firstElementChild;
  row.querySelector("code").textContent = key;
  row.querySelector("[data-last-step]").dataset.lastStep = row.querySelector("[data-last]").dataset.last = key;
  body.insertBefore(row, [...body.rows].find((each) => each.querySelector("code").textContent > key) ?? null);
  document.querySelector("[data-metrics]").hidden = false;
  document.querySelector("[data-no-metric]").hidden = true;
}
