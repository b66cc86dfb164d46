/** A thing that went wrong, with its cause, its remedy and what can be done at once. */

import type { ComponentChildren, VNode } from "preact";
import type { Problem } from "../lib/problem.ts";
import { Icon } from "./icons.tsx";

export function ProblemCard({
  problem,
  children,
}: {
  problem: Problem;
  children?: ComponentChildren;
}): VNode {
  return (
    <section class="problem" role="alert">
      <Icon name="warning" />
      <div>
        <h3>{problem.title}</h3>
        <p class="cause">{problem.cause}</p>
        <p>{problem.remedy}</p>
        {children ? <div class="actions">{children}</div> : null}
      </div>
    </section>
  );
}
