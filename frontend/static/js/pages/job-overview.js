// The overview tab.
import { drawCharts } from "./job-charts.js";
import { followJob } from "./job-frame.js";
import { growTimeline } from "./timeline.js";

growTimeline();
followJob({ onNews: drawCharts().onNews, everySecond: growTimeline });
