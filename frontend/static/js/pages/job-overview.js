// What matters of a job, at a glance.
import { drawCharts } from "./job-charts.js";
import { followJob } from "./job-frame.js";
import { leadOn } from "./moved.js";
import { growTimeline } from "./timeline.js";

leadOn();
growTimeline();
followJob({ onNews: drawCharts().onNews, everySecond: growTimeline });
