// The numbers of a job's page. What its tiles say is written by the server (backend/pages/tiles.py): here it is put in its
// place, and the clock ticks on between two answers.
import { number, reward, span } from "../lib/format.js";

let shown = null, since = 0;

const put = (name, text) => {
  for (const place of document.querySelectorAll(`[data-value="${name}"]`)) if (place.textContent !== text) place.textContent = text;
};

export function showTiles(tiles) {
  [shown, since] = [tiles, performance.now()];
  for (const name of ["done", "left", "reward", "reward_words"]) put(name, tiles[name]);
  for (const name of ["first", "last", "change", "words"]) put(`held_out.${name}`, tiles.held_out[name]);
  document.querySelector("[data-progress]").value = tiles.num_done;
  document.querySelector("[data-held-out]").dataset.tone = tiles.held_out.tone;
  document.title = tiles.title;
  tick();
}

export function tick() {
  put("elapsed", shown.is_ticking ? span(shown.elapsed_s + (performance.now() - since) / 1000) : shown.elapsed);
}

export function showLastValues(news) {
  for (const [key, points] of Object.entries(news)) showLast(key, points.at(-1));
}

function showLast(key, point) {
  const [step, value] = point;
  const name = CSS.escape(key);
  for (const place of document.querySelectorAll(`[data-last="${name}"]`)) place.textContent = place.closest('[data-chart="reward"]') ? reward(value) : number(value);
  for (const place of document.querySelectorAll(`[data-last-step="${name}"]`)) place.textContent = step;
}
