// A live list (jobs, home, or a pool's queue): a notification, then the list again from the server, at the current URL.
import { connectionDot } from "../lib/connection.js";
import { stayLive } from "../lib/live.js";
import { fetchMarkup, replaceContent } from "../lib/part.js";
import { wireChoosing } from "./choosing.js";

const list = document.querySelector("[data-live-part]");
const keepChosen = wireChoosing(list);

async function pull(signal, answered) {
  const url = new URL(location.href);
  url.searchParams.set("part", "");
  const next = await fetchMarkup(url, signal);
  answered();
  replaceContent(list, next.body);
  keepChosen();
  return false;
}

stayLive({ watch_team: true }, { pull, onStatus: connectionDot(document.querySelector("[data-connection]")), betweenPullsMs: Number(list.dataset.betweenPullsMs ?? 1_000) });
