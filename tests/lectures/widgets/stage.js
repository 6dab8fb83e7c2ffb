// A bare page for one widget: its module with a stand-in for the kernel.
async (source) => {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const widget = (await import(url)).default;
  let close = () => {};

  // Draws the widget anew in `state` and returns its root element.
  window.show = (state, theme = "light") => {
    close();
    document.documentElement.dataset.theme = theme;
    document.body.replaceChildren();
    document.body.style.background = theme === "dark" ? "#111" : "#fff";
    const listeners = {};
    window.model = {
      state: structuredClone(state),
      saved: 0,
      get: (key) => model.state[key],
      set: (key, value) => { model.state[key] = value; },
      on: (name, listener) => { (listeners[name] ??= []).push(listener); },
      off: () => {},
      save_changes: () => { model.saved += 1; },
    };
    window.change = (changes) => { // as Python does
      Object.assign(model.state, changes);
      for (const key of Object.keys(changes)) listeners[`change:${key}`]?.forEach((f) => f());
    };
    const place = document.body.appendChild(document.createElement("div"));
    close = widget.render({ model, el: place });
    window.root = place.firstElementChild.shadowRoot.querySelector(".widget");
  };

  window.seen = () => [
    root.querySelector(".picture").innerHTML,
    root.querySelector(".result").textContent,
    root.querySelector(".note")?.textContent ?? "",
  ];
  window.controls = () => [...root.querySelectorAll(".controls :is(input, select, button)")];
  window.focused = () => {
    let at = document.activeElement;
    while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
    return at;
  };
}
