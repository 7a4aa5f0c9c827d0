// The tiles of a job's page. The server writes their texts (backend/pages/job/panels/tiles.py); this inserts them, and advances the
// clock between two pulls.
import { span } from "../lib/format.js";

let shown = null, since = 0;

const put = (name, text) => {
  for (const place of document.querySelectorAll(`[data-value="${name}"]`)) if (place.textContent !== text) place.textContent = text;
};

export function showTiles(tiles) {
  [shown, since] = [tiles, performance.now()];
  for (const name of ["done", "left", "reward", "reward_text", "no_metric"]) put(name, tiles[name]);
  for (const name of ["first", "last", "change", "words"]) put(`held_out.${name}`, tiles.held_out[name]);
  const bar = document.querySelector("[data-progress]"); // not on every tab
  if (bar) bar.value = tiles.num_done;
  document.querySelector("[data-held-out]").dataset.tone = tiles.held_out.tone;
  const tab = document.querySelector(".tabs [aria-current]:not(:first-child)");
  document.title = tab ? `${tiles.title} · ${tab.textContent}` : tiles.title;
  tick();
}

export function tick() {
  put("elapsed", shown.is_ticking ? span(shown.elapsed_s + (performance.now() - since) / 1000) : shown.elapsed);
}
