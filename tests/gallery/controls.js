// What is pressed on this page: each thing that is smaller than WCAG 2.2 wants it (2.5.8: 24 by 24 pixels, or a link in a
// sentence), and each that looks the same with the focus as without it. A folded part is opened first.
(() => {
  const LEAST = 24;
  const PRESSED = "a[href], button, input:not([type=hidden]), select, textarea, summary, [role=button], [role=tab], [role=link], [tabindex]:not([tabindex='-1'])";
  const MARKS = ["outlineStyle", "outlineWidth", "outlineColor", "outlineOffset", "boxShadow", "borderColor"];
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  const isThere = (each) => each.checkVisibility({ visibilityProperty: true }) && !each.disabled && each.getBoundingClientRect().width > 1;
  const told = (each) => `${each.outerHTML.replace(/\s+/g, " ").slice(0, 140)} in ${each.parentElement.localName}.${each.parentElement.className}`;

  // A link with words beside it in the same paragraph, cell or item: its height is a line's.
  function standsInText(each) {
    if (!getComputedStyle(each).display.startsWith("inline") || each.matches("button, input, select")) return false;
    let around = each.parentElement;
    while (getComputedStyle(around).display === "inline" || getComputedStyle(around).display === "contents") around = around.parentElement;
    const words = [...around.childNodes].flatMap(function own(node) {
      if (node === each || node.nodeType === Node.ELEMENT_NODE && node.matches("a, button, svg, .unseen, script")) return [];
      return node.nodeType === Node.TEXT_NODE ? [node.data] : [...node.childNodes].flatMap(own);
    });
    return words.join("").trim().length > 1;
  }

  // Of a box to tick, and of a field in its label, the words are pressed as well; of a row's link all of its row.
  function roomOf(each) {
    const over = getComputedStyle(each, "::after");
    const around = over.content !== "none" && over.position === "absolute" ? [each.offsetParent] : [];
    const boxes = [each, ...around, ...(each.labels ?? [])].map((one) => one.getBoundingClientRect());
    return { width: Math.max(...boxes.map((box) => box.width)), height: Math.max(...boxes.map((box) => box.height)) };
  }

  const looks = (each) => [each, ...(each.labels ?? []), each.nextElementSibling, each.parentElement].filter(Boolean)
    .flatMap((one) => [getComputedStyle(one), getComputedStyle(one, "::after")]).map((style) => MARKS.map((name) => style[name]).join()).join("|");

  const found = [], before = document.activeElement;
  for (const each of document.querySelectorAll(PRESSED)) {
    if (!isThere(each)) continue;
    const { width, height } = roomOf(each);
    const isField = each.matches("[tabindex]:not(a, button)");
    if ((width < LEAST - 0.1 || height < LEAST - 0.1) && !isField && !standsInText(each)) found.push(`${width.toFixed(1)} by ${height.toFixed(1)} pixels: ${told(each)}`);
    if (each.tabIndex < 0) continue;
    before?.blur?.();
    document.activeElement?.blur?.();
    const plain = looks(each);
    each.focus({ preventScroll: true, focusVisible: true });
    if (document.activeElement !== each) found.push(`takes no focus: ${told(each)}`);
    else if (looks(each) === plain) found.push(`looks the same with the focus: ${told(each)}`);
  }
  document.activeElement?.blur?.();
  return found;
})()
