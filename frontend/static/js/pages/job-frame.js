// What every tab of a job's page does: it starts from what came with it, then pulls what is new since its cursor.
import { connectionDot } from "../lib/connection.js";
import { stayLive } from "../lib/live.js";
import { fetchMarkup, replaceContent } from "../lib/part.js";
import { say } from "../lib/toasts.js";
import { showTiles, tick } from "./tiles.js";
import { showVerdict } from "./verdict.js";

export const seed = JSON.parse(document.getElementById("live-seed").textContent);
export const addressOf = (path) => `/jobs/${seed.job.id}/${path}`;

// `onNews(news, signal)`: the tab's own part of it; what it throws counts as a pull that failed.
export function followJob({ onNews = () => {}, everySecond = () => {} } = {}) {
  let cursor = seed.cursor, job = seed.job, regionsAreOld = false;
  showTiles(seed.tiles);
  setInterval(() => { tick(); everySecond(); }, 1000);
  showWhichTab();

  async function pull(signal, answered) {
    const answer = await fetch(addressOf(`live?after=${cursor}`), { headers: { Accept: "application/json" }, signal });
    if (!answer.ok) throw Object.assign(new Error(`${answer.status}`), { status: answer.status });
    const news = await answer.json();
    answered();
    regionsAreOld ||= news.events.length > 0 || ["state", "phase", "reason", "message"].some((key) => news.job[key] !== job[key]);
    if (news.job.state !== job.state) say(`State: ${news.job.state}`);
    ({ cursor, job } = news);
    await onNews(news, signal);
    showTiles(news.tiles);
    await showVerdict(news.verdict, signal);
    if (regionsAreOld && !news.more) regionsAreOld = !(await refreshRegions(signal));
    return news.more;
  }

  // What a subscription is answered with is the newest cursor: a page that has it already asks for nothing.
  const isNews = (said) => regionsAreOld || !(said.cursor <= cursor);

  stayLive({ watch: job.id }, { pull, isNews, onStatus: connectionDot(document.querySelector("[data-connection]")) });
}

// On a phone the tabs are wider than the screen. Only they move, the page stays where it was.
function showWhichTab() {
  const tabs = document.querySelector(".job-bar .tabs"), bar = tabs.getBoundingClientRect();
  const tab = tabs.querySelector("[aria-current]").getBoundingClientRect();
  tabs.scrollLeft += tab.left + tab.width / 2 - bar.left - bar.width / 2;
}

async function refreshRegions(signal) {
  const next = await fetchMarkup("?part", signal);
  const done = [...document.querySelectorAll("[data-region]")].map((region) => replaceContent(region, next.getElementById(region.id)));
  return done.every(Boolean);
}
