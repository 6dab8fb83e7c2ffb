// What a person needs in order to read a widget, as functions of its root element.
// Evaluates to an object of functions; each returns a list of complaints, empty if all is well.
({
  // Every piece of text with the boxes of its ink: one for each SVG text, one for each line of
  // HTML text. The line box is taller than the letters in it.
  texts(root) {
    const found = [];
    const add = (node, words, rects) => {
      const style = getComputedStyle(node);
      const size = parseFloat(style.fontSize);
      const shown = node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
      if (!words.trim() || !shown) return;
      const upright = /rotate\(-?90/.test(node.getAttribute("transform") ?? "");
      const clip = this.clip(node, root);
      const boxes = [...rects].filter(({ width, height }) => width > 1 && height > 1)
        .map(({ left, right, top, bottom, width, height }) => {
          const spare = Math.max(0, ((upright ? width : height) - 0.72 * size) / 2 - 0.5);
          const [dx, dy] = upright ? [spare, 0] : [0, spare];
          return { left: left + dx, right: right - dx, top: top + dy, bottom: bottom - dy };
        })
        // what is scrolled out of sight is neither in the way nor cut off, and has no ground
        .map(({ left, right, top, bottom }) => !clip ? { left, right, top, bottom } : {
          left: Math.max(left, clip.left), right: Math.min(right, clip.right),
          top: Math.max(top, clip.top), bottom: Math.min(bottom, clip.bottom),
        })
        .filter((box) => box.right > box.left && box.bottom > box.top);
      if (boxes.length) found.push({ node, words: words.trim(), boxes });
    };
    for (const node of root.querySelectorAll("svg text")) {
      add(node, node.textContent, [node.getBoundingClientRect()]);
    }
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (node.parentElement.closest("svg, style, select, .spoken")) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      add(node.parentElement, node.textContent, range.getClientRects());
    }
    for (const node of root.querySelectorAll("select")) {
      add(node, node.selectedOptions[0]?.textContent ?? "", [node.getBoundingClientRect()]);
    }
    return found;
  },

  // The part of the page in which a node inside a scrolling box can be seen, else null: below a
  // heading that sticks to the top of the box.
  clip(node, root) {
    const box = node.parentElement?.closest("[data-scrolls]");
    if (!box || !root.contains(box)) return null;
    let { left, right, top, bottom } = box.getBoundingClientRect();
    if (!node.closest("[data-sticks]")) {
      for (const heading of box.querySelectorAll("[data-sticks]")) {
        const at = heading.getBoundingClientRect();
        if (at.height > 0 && at.top <= top + 1.5) top = Math.max(top, at.bottom);
      }
    }
    return { left, right, top, bottom };
  },

  markScrolling(root) {
    for (const node of root.querySelectorAll("*")) {
      const { overflowX, overflowY, position } = getComputedStyle(node);
      if (/auto|scroll/.test(overflowX + overflowY)) node.dataset.scrolls = "";
      if (position === "sticky") node.dataset.sticks = "";
    }
  },

  collisions(root) {
    this.markScrolling(root);
    const texts = this.texts(root);
    const found = [];
    const meet = (a, b) =>
      a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    texts.forEach((one, i) => texts.slice(i + 1).forEach((other) => {
      if (one.node.contains(other.node) || other.node.contains(one.node)) return;
      if (one.boxes.some((a) => other.boxes.some((b) => meet(a, b)))) {
        found.push(`“${one.words}” and “${other.words}” collide`);
      }
    }));
    const picture = root.querySelector(".picture").getBoundingClientRect();
    const whole = root.getBoundingClientRect();
    for (const { node, words, boxes } of texts) {
      const frame = node.closest(".picture") ? picture : whole;
      const scrolls = node.closest("[data-scrolls]");
      const out = boxes.some(({ left, right, top, bottom }) =>
        left < frame.left - 1 || right > frame.right + 1
        || top < frame.top - 1 || bottom > frame.bottom + 1);
      if (out && !scrolls) found.push(`“${words}” leaves the widget`);
    }
    for (const node of root.querySelectorAll(".controls *")) {
      if (node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0) {
        found.push(`“${node.textContent.trim()}” is cut (${node.tagName.toLowerCase()})`);
      }
    }
    for (const node of root.querySelectorAll("select")) {
      const pen = document.createElement("canvas").getContext("2d");
      pen.font = getComputedStyle(node).font;
      const room = node.clientWidth - 12 - 18; // padding and the native arrow
      for (const { textContent } of node.options) {
        if (pen.measureText(textContent).width > room) found.push(`“${textContent}” is cut`);
      }
    }
    if (root.scrollWidth > root.clientWidth + 1) found.push("the widget is wider than its place");
    return found;
  },

  // --- contrast: each text's colour against what is painted under it -------------------------

  color(text) {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return text.startsWith("color(srgb") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  },

  over([r, g, b, a], [R, G, B]) {
    return [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  },

  ratio(one, other) {
    const luminance = (color) => {
      const [r, g, b] = color.slice(0, 3).map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  },

  opacity(node, root) {
    let product = 1;
    for (let at = node; at && at !== root.parentNode; at = at.parentElement) {
      product *= Number(getComputedStyle(at).opacity);
    }
    return product;
  },

  // The colours that an element paints at a point inside it; hatching paints two.
  paints(node, root) {
    const style = getComputedStyle(node);
    const opacity = this.opacity(node, root);
    const faded = (text, alpha) => {
      const [r, g, b, a] = this.color(text);
      return [r, g, b, a * alpha * opacity];
    };
    if (!(node instanceof SVGElement)) return [faded(style.backgroundColor, 1)];
    if (!/^(rect|circle|path|polygon|ellipse)$/.test(node.tagName)) return [];
    if (style.fill === "none") return [];
    if (style.fill.startsWith("url(")) {
      const palette = getComputedStyle(root);
      return ["--hatch", "--dead"].map((name) => {
        const hex = palette.getPropertyValue(name).trim();
        return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).concat(opacity);
      });
    }
    return [faded(style.fill, Number(style.fillOpacity))];
  },

  contrast(root) {
    const shadow = root.getRootNode();
    const all = document.createElement("style");
    all.textContent = "* { pointer-events: all !important; }"; // else some cannot be found
    shadow.append(all);
    const found = [];
    const known = new Map();
    for (const { node, words, boxes } of this.texts(root)) {
      const style = getComputedStyle(node);
      const drawn = node instanceof SVGElement;
      const [r, g, b, a] = this.color(drawn ? style.fill : style.color);
      const ink = [r, g, b, a * (drawn ? Number(style.fillOpacity) : 1) * this.opacity(node, root)];
      const halo = drawn && style.paintOrder.startsWith("stroke") && style.stroke !== "none"
        && parseFloat(style.strokeWidth) >= 3;
      let worst = { value: Infinity };
      for (const { left, right, top, bottom } of boxes) {
        for (const across of [0.05, 0.5, 0.95]) {
          for (const down of [0.25, 0.75]) {
            const [x, y] = [left + across * (right - left), top + down * (bottom - top)];
            const stack = shadow.elementsFromPoint(x, y).filter((e) => root.contains(e));
            const at = stack.findIndex((e) => e === node || node.contains(e));
            const below = stack.slice(at + 1).filter((e) => !node.contains(e));
            if (!drawn && at >= 0) below.unshift(stack[at]); // its own background
            let grounds = [[255, 255, 255, 1]];
            for (const element of below.reverse()) {
              if (!known.has(element)) known.set(element, this.paints(element, root));
              const paints = known.get(element);
              if (paints.length) {
                grounds = paints.flatMap((paint) => grounds.map((old) => this.over(paint, old)));
                grounds = [...new Map(grounds.map((c) => [String(c), c])).values()];
              }
            }
            if (halo) grounds = [this.over(this.color(style.stroke), grounds[0])];
            for (const ground of grounds) {
              const value = this.ratio(this.over(ink, ground), ground);
              if (value < worst.value) worst = { value, ground };
            }
          }
        }
      }
      const enough = /[\p{L}\p{N}]/u.test(words) ? 4.5 : 3; // ▲ alone is a mark, no text
      if (worst.value < enough) {
        found.push(`“${words}” has a contrast of ${worst.value.toFixed(2)} on ${worst.ground}`);
      }
    }
    all.remove();
    return found;
  },
})
