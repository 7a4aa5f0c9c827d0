// The connection dot: how fresh the page is. Changes of its text are announced, the running seconds are not.
import { span } from "./format.js";

const WORDS = { live: "live", "catching-up": "catching up", polling: "polling every 3 s", stale: "stale since", offline: "offline since", "signed-out": "signed out" };
const SINCE = new Set(["stale", "offline"]);

export function connectionDot(element) {
  const words = element.querySelector("[data-connection-words]");
  const seconds = element.querySelector("[data-connection-seconds]");
  let since = Date.now();
  setInterval(() => { seconds.textContent = SINCE.has(element.dataset.state) ? span((Date.now() - since) / 1000) : ""; }, 1000);
  return (state, goodAt) => {
    since = goodAt;
    if (element.dataset.state === state && words.textContent === WORDS[state]) return;
    element.dataset.state = state === "signed-out" ? "offline" : state;
    if (state === "signed-out") words.replaceChildren(Object.assign(document.createElement("a"), { href: location.href, textContent: "signed out: reload" }));
    else words.textContent = WORDS[state];
  };
}
