// Replacing a part of the page by the server's newer markup, without taking away what the reader is holding.
const isHeld = (node) => Boolean(node.querySelector("dialog[open]")) || node.contains(getSelectionNode());

function getSelectionNode() {
  const selection = getSelection();
  return selection && !selection.isCollapsed ? selection.anchorNode : null;
}

export async function fetchMarkup(url) {
  const answer = await fetch(url, { headers: { Accept: "text/html" }, redirect: "manual" });
  if (answer.type === "opaqueredirect") throw Object.assign(new Error("to the sign-in page"), { status: 401 });
  if (!answer.ok) throw Object.assign(new Error(`${answer.status}`), { status: answer.status });
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

// `now` takes the children of `next`. False: the reader is in the middle of it, try again later.
export function replaceContent(now, next) {
  if (now.innerHTML === next.innerHTML) return true;
  if (isHeld(now)) return false;
  const focused = now.contains(document.activeElement) ? addressOf(document.activeElement, now) : null;
  const scrolled = [...now.querySelectorAll("ol, pre")].map((each) => each.scrollTop);
  now.replaceChildren(...document.adoptNode(next).childNodes);
  now.querySelectorAll("ol, pre").forEach((each, i) => { each.scrollTop = scrolled[i] ?? 0; });
  if (focused) now.querySelector(focused)?.focus({ preventScroll: true });
  return true;
}

function addressOf(element, within) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  const href = element.getAttribute("href");
  if (href) return `${element.localName}[href="${CSS.escape(href)}"]`;
  const index = [...within.querySelectorAll(element.localName)].indexOf(element);
  return index === 0 ? element.localName : null;
}
