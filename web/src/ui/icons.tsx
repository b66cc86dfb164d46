/** Line icons, drawn here so that nothing is loaded for them. All are decoration: the text beside them says it. */

import type { VNode } from "preact";

const PATHS = {
  chat: "M4 5h16v11H9l-5 4z",
  tools: "M14.5 6.5a4 4 0 0 0-5 5L4 17v3h3l5.5-5.5a4 4 0 0 0 5-5l-2.5 2.5-2.5-.5-.5-2.5z",
  log: "M5 6h14M5 12h14M5 18h9",
  workspace: "M3 7a2 2 0 0 1 2-2h4l2 2h8a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2z",
  add: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  check: "M5 12.5l4.5 4.5L19 7.5",
  cross: "M6 6l12 12M18 6L6 18",
  minus: "M6 12h12",
  chevron: "M9 6l6 6-6 6",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  moon: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  warning: "M12 4l9 16H3zM12 10v4M12 17v.5",
  question: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .9-1 1.7M12 16.5v.5",
  copy: "M9 9h10v11H9zM5 15V4h10",
  download: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  refresh: "M20 11a8 8 0 0 0-14.5-4L4 8.5M4 4v4.5h4.5M4 13a8 8 0 0 0 14.5 4l1.5-1.5M20 20v-4.5h-4.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, class: className = "" }: { name: IconName; class?: string }): VNode {
  return (
    <svg class={`icon ${className}`} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
