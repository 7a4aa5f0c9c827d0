// A job's page: starts from what came with it, then pulls what is new since its cursor.
import { palette } from "../charts/palette.js";
import { Panel } from "../charts/panel.js";
import { connectionDot } from "../lib/connection.js";
import { stayLive } from "../lib/live.js";
import { fetchMarkup, replaceContent } from "../lib/part.js";
import { SeriesStore } from "../lib/series.js";
import { onThemeChange } from "../lib/theme.js";
import { TrajectoryReader } from "./trajectories.js";
import { showLastValues, showTiles, tick } from "./tiles.js";

const seed = JSON.parse(document.getElementById("live-seed").textContent);
const store = new SeriesStore();
const reading = document.querySelector(".reading"); // an evaluation's page has none, and no chart
const reader = reading && new TrajectoryReader(reading);
const plots = [...document.querySelectorAll("[data-plot]")];
const panels = plots.map((plot) => new Panel(plot, store, palette(), (step) => reader.show(step)));
let cursor = seed.cursor, job = seed.job, regionsAreOld = false;

store.add(seed.series);
reader?.add(seed.trajectories);
showTiles(seed.tiles);
setInterval(tick, 1000);
onThemeChange(() => { const colours = palette(); for (const panel of panels) panel.repaint(colours); });

async function pull() {
  const answer = await fetch(`live?after=${cursor}`, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw Object.assign(new Error(`${answer.status}`), { status: answer.status });
  const news = await answer.json();
  regionsAreOld ||= news.events.length > 0 || ["state", "phase", "reason", "message"].some((key) => news.job[key] !== job[key]);
  ({ cursor, job } = news);
  store.add(news.series);
  reader?.add(news.trajectories);
  if (Object.keys(news.series).length) for (const panel of panels) panel.repaint();
  showTiles(news.tiles);
  showLastValues(news.series);
  if (regionsAreOld && !news.more) regionsAreOld = !(await refreshRegions());
  return news.more;
}

async function refreshRegions() {
  const next = await fetchMarkup("?part");
  const done = [...document.querySelectorAll("[data-region]")].map((region) => replaceContent(region, next.getElementById(region.id)));
  return done.every(Boolean);
}

stayLive({ watch: seed.job.id }, { pull, onStatus: connectionDot(document.querySelector("[data-connection]")) });
