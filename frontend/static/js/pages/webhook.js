// Refreshes a webhook's deliveries: often while one is pending, seldom otherwise.
import { fetchMarkup, replaceContent } from "../lib/part.js";

const WHILE_ONE_WAITS_MS = 1_500;
const OTHERWISE_MS = 15_000;
const list = document.querySelector("[data-deliveries]");

async function look() {
  if (!document.hidden) {
    const url = new URL(location.href);
    url.searchParams.delete("made");
    url.searchParams.set("part", "");
    try { replaceContent(list, (await fetchMarkup(url)).body); } catch (failure) { if (failure.status) return; }
  }
  plan();
}

const plan = () => setTimeout(look, list.querySelector("[data-waiting]") ? WHILE_ONE_WAITS_MS : OTHERWISE_MS);
plan();
