// Run in a page by test_widths.py.
({
  // What is wider than its place. Boxes that scroll by themselves may hold more, but no box of a table.
  wide() {
    const found = [], wide = document.documentElement.scrollWidth;
    if (wide > innerWidth) found.push(`the page is ${wide} wide`);
    const name = (each) => `${each.tagName.toLowerCase()}.${each.className.baseVal ?? each.className} "${(each.textContent || "").trim().slice(0, 50)}"`;
    const scrolls = ".picture, pre, .body, .tabs, .side nav ul";
    for (const each of document.querySelectorAll("main .card, main .wide, main .top, main form:not(:has(.wide)), main table, main .note, main .warn, main .bad, .side, .two > div")) {
      if (each.scrollWidth > each.clientWidth + 1) found.push(`${name(each)}: ${each.scrollWidth} in ${each.clientWidth}`);
    }
    for (const each of document.querySelectorAll("main *, .side *")) {
      if (each.closest(scrolls) || each.closest("details:not([open]) > :not(summary), svg, .u-wrap, .skip, dialog, datalist, option, thead")) continue;
      const box = each.getBoundingClientRect(), style = getComputedStyle(each);
      if (!box.width || !box.height) continue;
      if (box.right > innerWidth + 1 || box.left < -1) found.push(`${name(each)}: from ${box.left} to ${box.right}`);
      const card = each.closest(".card");
      if (card && card !== each) {
        const around = card.getBoundingClientRect();
        if (box.right > around.right + 1 || box.left < around.left - 1) found.push(`${name(each)} leaves its card`);
      }
      const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
      if (own && style.overflowX !== "visible" && each.scrollWidth > each.clientWidth + 1 && !each.title) found.push(`${name(each)} is cut`);
    }
    const ends = (each) => each.getBoundingClientRect().right;
    for (const each of document.querySelectorAll("svg a:has(.plate) text")) {
      if (ends(each) > ends(each.closest("a").querySelector(".plate"))) found.push(`${name(each)} leaves its box`);
    }
    for (const each of document.querySelectorAll(".side [aria-current], .tabs [aria-current]")) {
      if (ends(each) > ends(each.closest("ul, .tabs")) + 1) found.push(`${name(each)} is not in sight`);
    }
    return found.slice(0, 8);
  },
  // In a line of a form, what stands at one height has one height.
  uneven() {
    const found = [];
    for (const form of document.querySelectorAll("main form.line")) {
      const fields = [...form.querySelectorAll("label > input:not([type=checkbox]), label > select, :scope > button")].map((each) => each.getBoundingClientRect());
      for (const one of fields) for (const other of fields) {
        const isOneLine = one.top < other.bottom && other.top < one.bottom;
        if (isOneLine && (Math.abs(one.bottom - other.bottom) > 1 || Math.abs(one.height - other.height) > 1)) found.push(`${one.top}+${one.height} beside ${other.top}+${other.height}`);
      }
      const sizes = new Set([...form.querySelectorAll("label")].map((each) => getComputedStyle(each).fontSize));
      if (sizes.size > 1) found.push(`labels of ${[...sizes]}`);
    }
    return found;
  },
})
