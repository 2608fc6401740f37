package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// copyBootModules copies bootModules and their dependencies from a directory of modules to dir, decompressed. Their
// names sort in load order.
func copyBootModules(ctx context.Context, modules, dir string) error {
	dep, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return fmt.Errorf("read dependencies of modules: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(modules, "modules.builtin"))
	if err != nil {
		return fmt.Errorf("read modules that are built in: %w", err)
	}
	files, err := loadOrder(string(dep), string(builtin), bootModules)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i, file := range files {
		b, err := readModule(ctx, filepath.Join(modules, file))
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%02d-%s.ko", i, moduleName(file))
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readModule returns the decompressed module. Those of 6.12 are compressed.
func readModule(ctx context.Context, file string) ([]byte, error) {
	if !strings.HasSuffix(file, ".xz") {
		return os.ReadFile(file)
	}
	text, err := output(command(ctx, "xz", "--decompress", "--stdout", file))
	return []byte(text), err
}

// loadOrder returns the files of modules and their dependencies in load order. dep is modules.dep, in which the
// dependencies on a line are in the order in which to unload them:
//
//	kernel/drivers/block/virtio_blk.ko.xz: kernel/drivers/virtio/virtio_ring.ko.xz kernel/drivers/virtio/virtio.ko.xz
//
// builtin is modules.builtin, which has one file per line. Built-in modules are omitted.
func loadOrder(dep, builtin string, modules []string) ([]string, error) {
	needs := make(map[string][]string)
	for line := range strings.Lines(dep) {
		file, rest, _ := strings.Cut(line, ":")
		needs[moduleName(file)] = append([]string{file}, strings.Fields(rest)...)
	}
	isBuiltin := make(map[string]bool)
	for file := range strings.Lines(builtin) {
		isBuiltin[moduleName(strings.TrimSpace(file))] = true
	}
	var order []string
	for _, name := range modules {
		files, ok := needs[name]
		if !ok && !isBuiltin[name] {
			return nil, fmt.Errorf("find module %s: neither in modules.dep nor built in", name)
		}
		for _, file := range slices.Backward(files) {
			if !slices.Contains(order, file) {
				order = append(order, file)
			}
		}
	}
	return order, nil
}

// moduleName returns for example virtio_blk for kernel/drivers/block/virtio_blk.ko.xz.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
