// What the parts of a job say.
import { followJob } from "./job-frame.js";
import { LogReader } from "./logs.js";

const section = document.querySelector(".logs:has([data-log])"); // none of what was removed
const reader = section && new LogReader(section);
followJob({ onNews: (_, signal) => reader?.news(signal) });
