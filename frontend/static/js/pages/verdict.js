// The verdict above the page. A pull says which one stands; its markup comes when that is another one.
import { fetchMarkup, replaceContent } from "../lib/part.js";

const place = document.getElementById("verdict");
const said = document.querySelector("[data-verdict-said]");
let shown = place.dataset.verdict;

export async function showVerdict(stands, signal) {
  if (stands === shown) return;
  const next = (await fetchMarkup("?part=verdict", signal)).getElementById("verdict");
  if (!replaceContent(place, next)) return; // the reader is in the middle of it: with the next pull
  shown = next.dataset.verdict;
  if (next.dataset.word === place.dataset.word) return; // numbers that move on are not worth saying aloud
  place.dataset.word = said.textContent = next.dataset.word;
}
