// What has the focus: whether it is marked, itself or by what stands over or beside it, and whether it is in sight.
(() => {
  const at = document.activeElement, box = at.getBoundingClientRect();
  const isOutlined = (style) => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5;
  const marks = [getComputedStyle(at), getComputedStyle(at, "::after"), ...(at.nextElementSibling ? [getComputedStyle(at.nextElementSibling)] : [])];
  const within = (value, most) => Math.max(1, Math.min(most - 1, value));
  const over = document.elementFromPoint(within(box.x + box.width / 2, innerWidth), within(box.y + Math.min(box.height / 2, 20), innerHeight));
  const isOnTop = !over || at.contains(over) || over.contains(at) || at.labels?.length > 0;
  return {
    what: at.outerHTML.slice(0, 160),
    isMarked: at === document.body || marks.some(isOutlined),
    isInSight: at === document.body || (box.bottom > 0 && box.top < innerHeight && isOnTop),
  };
})()
