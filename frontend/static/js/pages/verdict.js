// The verdict line. A pull identifies the current verdict; its markup is fetched when the verdict changes.
import { fetchMarkup, replaceContent } from "../lib/part.js";

const place = document.getElementById("verdict");
const said = document.querySelector("[data-verdict-said]");
let shown = place.dataset.verdict;

export async function showVerdict(stands, signal) {
  if (stands === shown) return;
  const next = (await fetchMarkup("?part=verdict", signal)).getElementById("verdict");
  if (!replaceContent(place, next)) return; // the user is interacting with it: retry on the next pull
  shown = next.dataset.verdict;
  if (next.dataset.word === place.dataset.word) return; // changing numbers are not announced
  place.dataset.word = said.textContent = next.dataset.word;
}
