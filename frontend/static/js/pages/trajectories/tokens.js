// Details of one token: by pointer, by the slider's arrow keys, and by #token-N in the URL.
import { change, number } from "../../lib/format.js";

export function readTokens(box) {
  const numbers = JSON.parse(document.getElementById("token-numbers").textContent);
  const [slider, words, link] = ["#token-slider", "[data-token-words]", "[data-token-link]"].map((each) => box.querySelector(each));
  const tokenAt = (at) => document.getElementById(`token-${at}`);
  const placeOf = (id) => { const found = /^#?token-(\d+)$/.exec(id); return found && tokenAt(Number(found[1])) ? Number(found[1]) : null; };

  function show(at) {
    const token = tokenAt(at), told = wordsOf(at, numbers);
    box.querySelector(".here")?.classList.remove("here");
    token.classList.add("here");
    slider.value = at;
    const said = document.createElement("b");
    said.textContent = token.textContent.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
    words.replaceChildren(`Token ${at}: “`, said, `” · ${told}`);
    slider.setAttribute("aria-valuetext", `Token ${at}: ${token.textContent}, ${told}`);
    link.href = `#token-${at}`;
    link.hidden = false;
  }

  function goToAddress() {
    const at = placeOf(location.hash);
    if (at !== null) { show(at); tokenAt(at).scrollIntoView({ block: "nearest" }); }
  }

  slider.addEventListener("input", () => { show(Number(slider.value)); tokenAt(slider.value).scrollIntoView({ block: "nearest" }); });
  box.addEventListener("pointerover", (event) => { const at = placeOf(event.target.id); if (at !== null) show(at); });
  box.addEventListener("click", (event) => {
    const at = placeOf(event.target.id);
    if (at === null || !getSelection().isCollapsed) return;
    show(at);
    history.replaceState(null, "", `#token-${at}`);
  });
  addEventListener("hashchange", goToAddress);
  goToAddress();
}

function wordsOf(at, { logprobs, gaps, versions, written, advantage }) {
  if (!written[at]) return "written by the environment";
  const trainer = gaps.length ? ` · by the trainer ${number(logprobs[at] + gaps[at])} (gap ${gaps[at] > 0 ? "+" : ""}${number(gaps[at])})` : "";
  return `log-prob ${number(logprobs[at])} (${number(100 * Math.exp(logprobs[at]))} %)${trainer} · advantage ${change(advantage)} · version ${versions[at]}`;
}
