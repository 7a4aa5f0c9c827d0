// The numbers of a job's page: steps, time, reward before, now and after, and the last value of each series.
import { change, number, reward, share, span } from "../lib/format.js";

const PACE_OVER_STEPS = 20; // as in backend/pages/snapshot.py
const MIN_STEPS_TO_FORETELL = 3;
const MIN_ANSWERED_TO_FORETELL = 0.1; // of all prompts: the first to be answered are the short ones

const put = (name, text) => {
  for (const place of document.querySelectorAll(`[data-value="${name}"]`)) if (place.textContent !== text) place.textContent = text;
};

export function showVitals(job, store, news = {}) {
  put("done", number(job.progress.done));
  const bar = document.querySelector("[data-progress]");
  if (bar) bar.value = job.progress.done;
  showTime(job, store);
  put("reward", reward(store.last("reward/mean")?.[1]));
  const untrusted = store.last("reward/untrusted")?.[1];
  put("reward-words", `of the training batch${untrusted ? `; ${share(untrusted)} not trusted, not learned` : ""}`);
  if (job.steps) showHeldOut(store.points("evaluation/reward"), job.is_terminal);
  else showEvaluation(store);
  for (const [key, points] of Object.entries(news)) showLast(key, points.at(-1));
  const { done, total } = job.progress;
  const title = done && !job.is_terminal ? `${number(done)}/${number(total)}` : job.state;
  document.title = `${title} · ${job.name}`;
}

function showTime(job, store) {
  if (!job.started_at) return;
  const until = job.finished_at ? Date.parse(job.finished_at) : Date.now();
  const elapsed = (until - Date.parse(job.started_at)) / 1000;
  put("elapsed", span(elapsed));
  if (job.is_terminal) put("left", `${job.finished_at.slice(0, 19).replace("T", " ")} UTC`);
  else {
    const left = secondsLeft(job, store, elapsed);
    put("left", left === null ? "\u00a0" : `about ${span(left)} left`);
  }
}

function secondsLeft({ steps, num_attempts, progress: { done, total } }, store, elapsed) {
  if (done < (steps ? MIN_STEPS_TO_FORETELL : total * MIN_ANSWERED_TO_FORETELL)) return null;
  if (!steps && num_attempts > 1) return null; // it began anew, its clock did not
  const recent = store.points("trainer/step_s").slice(-PACE_OVER_STEPS).map(([, value]) => value);
  const pace = recent.length ? recent.reduce((a, b) => a + b) / recent.length : elapsed / done;
  return pace * (total - done);
}

function showEvaluation(store) {
  const found = store.points("evaluation/reward").at(-1), spread = store.points("evaluation/reward_std").at(-1);
  if (found) put("held-out-first", reward(found[1]));
  if (spread) put("held-out-words", `spread ${reward(spread[1])} over the prompts`);
}

function showHeldOut(points, isOver) {
  if (!points.length) return;
  if (points[0][0] > 0) { put("held-out-last", reward(points.at(-1)[1])); put("held-out-words", "not measured before training"); return; }
  put("held-out-first", reward(points[0][1]));
  if (points.length === 1) { put("held-out-words", `before training; ${isOver ? "the job ended before the second" : "the second number comes at the end"}`); return; }
  put("held-out-last", reward(points.at(-1)[1]));
  put("held-out-words", `${change(points.at(-1)[1] - points[0][1])} on prompts it never trained on`);
}

function showLast(key, point) {
  const [step, value] = point;
  const name = CSS.escape(key);
  for (const place of document.querySelectorAll(`[data-last="${name}"]`)) place.textContent = place.closest('[data-chart="reward"]') ? reward(value) : number(value);
  for (const place of document.querySelectorAll(`[data-last-step="${name}"]`)) place.textContent = step;
}
