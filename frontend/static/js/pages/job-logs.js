// The logs tab.
import { followJob } from "./job-frame.js";
import { LogReader } from "./logs.js";

const section = document.querySelector(".logs:has([data-log])"); // absent for removed logs
const reader = section && new LogReader(section);
followJob({ onNews: (_, signal) => reader?.news(signal) });
