// Replaces a part of the page by newer markup of the server, without disturbing the user's focus or selection.
import { tellHere } from "./clock.js";

const isHeld = (node) => Boolean(node.querySelector("dialog[open]")) || node.contains(getSelectionNode()) || isBeingTypedIn(node);

function isBeingTypedIn(node) {
  const field = document.activeElement;
  return node.contains(field) && "defaultValue" in field && field.value !== field.defaultValue;
}

function getSelectionNode() {
  const selection = getSelection();
  return selection && !selection.isCollapsed ? selection.anchorNode : null;
}

// `body`: a form's data, for a preview.
export async function fetchMarkup(url, signal, body) {
  const answer = await fetch(url, { method: body ? "POST" : "GET", body, headers: { Accept: "text/html" }, redirect: "manual", signal });
  if (answer.type === "opaqueredirect") throw Object.assign(new Error("to the sign-in page"), { status: 401 });
  if (!answer.ok) throw Object.assign(new Error(`${answer.status}`), { status: answer.status });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  tellHere(page);
  return page;
}

// `now` takes the children of `next`. False: the user is interacting with it; try again later.
export function replaceContent(now, next) {
  if (now.innerHTML === next.innerHTML) return true;
  if (isHeld(now)) return false;
  const focused = now.contains(document.activeElement) ? likeness(document.activeElement) : null;
  const scrolled = [...now.querySelectorAll(SCROLLING)].map((each) => each.scrollTop);
  const room = "keepsRoom" in now.dataset ? now.offsetHeight : 0;
  const folds = [...now.querySelectorAll("details")].map((each) => [likeness(each), each.open]);
  now.replaceChildren(...document.adoptNode(next).childNodes);
  now.querySelectorAll(SCROLLING).forEach((each, i) => { each.scrollTop = scrolled[i] ?? 0; });
  for (const [isIt, open] of folds) { const found = [...now.querySelectorAll("details")].find(isIt); if (found) found.open = open; }
  if (room) keepRoom(now, room);
  if (focused) focusOn([...now.querySelectorAll("*")].find(focused) ?? now.querySelector("h1, h2, h3") ?? now);
  return true;
}

const SCROLLING = "ol, pre, .said";

// A part that shrinks keeps its height while it is visible, so that content below does not move.
function keepRoom(part, height) {
  part.style.minHeight = "";
  if (part.offsetHeight < height) part.style.minHeight = `${height}px`;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) for (const part of document.querySelectorAll("[data-keeps-room]")) part.style.minHeight = "";
});

// Restores the focus; if its element is gone, focuses the head of the new content.
function focusOn(element) {
  element.focus({ preventScroll: true });
  if (document.activeElement === element) return;
  element.tabIndex = -1;
  element.focus({ preventScroll: true });
}

const nameOf = (element) => element.getAttribute("aria-label") ?? (element.querySelector("summary") ?? element).textContent.trim();

// Finds the element by id, else by label, since URLs and numbers in it may have changed.
function likeness(element) {
  if (element.id) return (other) => other.id === element.id;
  const [kind, name, href] = [element.localName, nameOf(element), element.getAttribute("href")];
  return (other) => other.localName === kind && nameOf(other) === name && other.getAttribute("href") === href;
}
