// The charts of a tab. A click opens the trajectories of its step.
import { SeriesStore } from "../lib/series.js";
import { Curves } from "./curves.js";
import { addressOf, seed } from "./job-frame.js";
import { showLastValues } from "./last-values.js";

// Returns the charts and the handler for the news of a pull.
export function drawCharts() {
  const store = new SeriesStore();
  store.replace(seed);
  const onStep = (step) => { location.href = addressOf(`trajectories/?step=${step}`); };
  const curves = new Curves(store, { marks: seed.marks, name: seed.job.name, address: addressOf("series"), onStep });
  const onNews = (news) => {
    for (const { data } of news.events) if ("resume_step" in data && "attempt" in data) store.cutAfter(data.resume_step);
    store.add(news.series);
    curves.news(news.events);
    showLastValues(news.series);
  };
  return { store, curves, onNews };
}
