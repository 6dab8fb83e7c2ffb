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
