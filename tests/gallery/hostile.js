// What of this page's hostile texts became more than text, and every text that a reader finds on it.
() => {
  const LINKS = ["href", "src", "action", "formaction", "xlink:href", "data", "srcdoc"];
  const NEVER = ["iframe", "object", "embed", "base"];
  const SHOWN = ["title", "aria-label", "placeholder", "content", "data-copy", "data-question"];
  const found = window.__hits.map(() => "a script ran"), texts = [document.title];
  for (const each of document.querySelectorAll("*")) {
    for (const { name, value } of each.attributes) {
      if (name.startsWith("on")) found.push(`handler ${name} of ${each.localName}`);
      if (LINKS.includes(name) && /^\s*(javascript|vbscript|data:text)/i.test(value)) found.push(`link ${value.slice(0, 80)}`);
      if (SHOWN.includes(name)) texts.push(value);
    }
    if (NEVER.includes(each.localName)) found.push(each.localName);
    if (each.localName === "img" && each.getAttribute("src") === "x") found.push("img");
    if (each.localName === "script" && !each.src && each.type !== "application/json") found.push("script");
    if (["input", "textarea", "option"].includes(each.localName)) texts.push(each.value);
  }
  const isText = (node) => node.parentElement.closest("script, style, template, noscript") === null;
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) if (isText(words.currentNode)) texts.push(words.currentNode.data);
  return { found, text: texts.join("\n") };
}
