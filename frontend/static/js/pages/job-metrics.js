// The charts of every series, and their last values.
import { drawCharts } from "./job-charts.js";
import { followJob } from "./job-frame.js";
import { Matching } from "./matching.js";

const { curves, onNews } = drawCharts();
const names = [...document.querySelectorAll("[data-metrics] tbody code")].map((each) => each.textContent);
const part = document.querySelector("[data-matching-part]"); // evaluations have none
const matching = part && new Matching(part, curves, names);
followJob({ onNews: (news) => { onNews(news); matching?.news(Object.keys(news.series)); } });
