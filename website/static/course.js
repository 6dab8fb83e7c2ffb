// Saves a notebook whose link was followed. See `download` in build.py.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a.notebook-file");
  if (!link) return;
  event.preventDefault();
  const script = document.createElement("script");
  script.src = `${link.href}.js`;
  script.onerror = () => location.assign(link.href);
  document.head.append(script);
});

function saveFile(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ipynb+json" }));
  link.download = name;
  link.click();
}

// A display formula that is a little too wide for its column is set smaller, down to three
// quarters; below that (on a telephone) it scrolls.
const SMALLEST = 0.75;

function fitFormulas() {
  for (const formula of document.querySelectorAll(".bd-article div.math")) {
    formula.style.fontSize = "";
    for (let size = 0.97; size > SMALLEST && formula.scrollWidth > formula.clientWidth; size -= 0.03) {
      formula.style.fontSize = `${100 * size}%`;
    }
  }
}

addEventListener("load", () => {
  globalThis.MathJax?.startup.promise.then(() => {
    fitFormulas();
    addEventListener("resize", fitFormulas);
  });
});
