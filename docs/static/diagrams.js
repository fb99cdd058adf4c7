// Draws the diagrams of a page in the colours of its theme, and again when the reader changes the theme.
const diagrams = [...document.querySelectorAll("pre.mermaid")];
const texts = diagrams.map((diagram) => diagram.textContent);
const system = window.matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.body.dataset.theme;
  return chosen === "dark" || (chosen !== "light" && system.matches);
}

let drawn;
async function draw() {
  if (drawn === isDark()) return;
  drawn = isDark();
  diagrams.forEach((diagram, number) => {
    diagram.removeAttribute("data-processed");
    diagram.textContent = texts[number];
  });
  mermaid.initialize({ startOnLoad: false, theme: drawn ? "dark" : "default" });
  await mermaid.run({ nodes: diagrams });
}

new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
system.addEventListener("change", draw);
draw();
