export function workspaceFiles(): Record<string, Uint8Array>;
export function packWorkspace(out?: string): void;
