// Common to every tab of a job's page: starts from the initial data, then pulls everything since its cursor.
import { connectionDot } from "../lib/connection.js";
import { stayLive } from "../lib/live.js";
import { fetchMarkup, replaceContent } from "../lib/part.js";
import { say } from "../lib/toasts.js";
import { showTiles, tick } from "./tiles.js";
import { showVerdict } from "./verdict.js";

export const seed = JSON.parse(document.getElementById("live-seed").textContent);
export const addressOf = (path) => `/jobs/${seed.job.id}/${path}`;

// `onNews(news, signal)`: the tab's handler; an exception counts as a failed pull.
export function followJob({ onNews = () => {}, everySecond = () => {} } = {}) {
  let cursor = seed.cursor, job = seed.job, regionsAreOld = false;
  showTiles(seed.tiles);
  setInterval(() => { tick(); everySecond(); }, 1000);
  showWhichTab();

  async function pull(signal, answered, ask) {
    const news = ask ? await ask({ pull: job.id, after: cursor }, signal) : await fetchNews(cursor, signal);
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

  // The response to a subscription is the newest cursor: a page that is at this cursor does not pull.
  const isNews = (said) => regionsAreOld || !(said.cursor <= cursor);

  stayLive({ watch: job.id }, { pull, isNews, onStatus: connectionDot(document.querySelector("[data-connection]")) });
}

async function fetchNews(after, signal) {
  const answer = await fetch(addressOf(`live?after=${after}`), { headers: { Accept: "application/json" }, signal });
  if (!answer.ok) throw Object.assign(new Error(`${answer.status}`), { status: answer.status });
  return answer.json();
}

// On a phone the tabs are wider than the screen. Scrolls only the tabs, not the page.
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
