package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// series describes a kernel that machines can boot.
type series struct {
	Name string
	// Suites are where its packages are, Package what they are called.
	Suites  []string
	Package string
}

// kernels are Debian's for virtual machines: small, with virtio, BTF and both cgroup hierarchies' controllers (the
// memory controller of v1 in 6.1 only: 6.12 is built without CONFIG_MEMCG_V1).
var kernels = []series{
	{Name: "6.1", Suites: []string{suite, suite + "-backports"}, Package: `^linux-image-6\.1\.0-(\d+)-cloud-amd64$`},
	{Name: "6.12", Suites: []string{suite, suite + "-backports"}, Package: `^linux-image-6\.12\.(\d+)\+deb12-cloud-amd64$`},
}

// bootModules are what the root disk is mounted with and the events leave by. What they depend on is found out, and
// what is built in is left out.
var bootModules = []string{"virtio_pci", "virtio_blk", "virtio_console"}

// Kernel is a kernel in the cache.
type Kernel struct {
	// Series is such as 6.1, Release what uname says.
	Series, Release string
	dir             string
}

// Image is the file that QEMU boots.
func (k Kernel) Image() string { return filepath.Join(k.dir, "vmlinuz") }

// Modules is a disk with the content of /lib/modules/RELEASE.
func (k Kernel) Modules() string { return filepath.Join(k.dir, "modules.img") }

// Series lists the kernels that there are, oldest first.
func Series() []string {
	var names []string
	for _, s := range kernels {
		names = append(names, s.Name)
	}
	return names
}

// ErrNoKernel says that a series is not one of Series, or that the archive does not have it.
var ErrNoKernel = errors.New("no such kernel")

// Kernel returns the kernel of a series, which a first call downloads (30 MB).
func (c *Cache) Kernel(ctx context.Context, name string) (Kernel, error) {
	i := slices.IndexFunc(kernels, func(s series) bool { return s.Name == name })
	if i < 0 {
		return Kernel{}, fmt.Errorf("find kernel %s: %w: there are %s", name, ErrNoKernel, strings.Join(Series(), ", "))
	}
	s := kernels[i]
	key := hash([]any{s, bootModules})
	dir, err := c.entry(ctx, "kernel-"+name+"-"+key, "kernel "+name, func(ctx context.Context, dir string) error {
		source, err := FindSource("/etc/apt")
		if err != nil {
			return err
		}
		return s.build(ctx, source, dir)
	})
	if err != nil {
		return Kernel{}, err
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return Kernel{}, fmt.Errorf("find kernel %s: %w", name, err)
	}
	return Kernel{Series: name, Release: strings.TrimSpace(string(release)), dir: dir}, nil
}

// build makes release, vmlinuz, modules.img and boot in dir.
func (s series) build(ctx context.Context, source Source, dir string) error {
	work := filepath.Join(dir, "work")
	deb, err := s.download(ctx, source, work)
	if err != nil {
		return err
	}
	unpacked := filepath.Join(work, "unpacked")
	if _, err := output(command(ctx, "dpkg-deb", "-x", deb, unpacked)); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(unpacked, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return fmt.Errorf("unpack kernel: found %d kernels in %s", len(images), filepath.Base(deb))
	}
	if err := os.Rename(images[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	if _, err := output(command(ctx, "depmod", "-b", unpacked, release)); err != nil {
		return err
	}
	modules := filepath.Join(unpacked, "lib/modules", release)
	if err := copyBootModules(ctx, modules, filepath.Join(dir, "boot")); err != nil {
		return err
	}
	if err := MakeDisk(ctx, modules, filepath.Join(dir, "modules.img")); err != nil {
		return err
	}
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "release"), []byte(release+"\n"), 0o644)
}

// download gets the newest package of the series, which apt verifies, as its lists.
func (s series) download(ctx context.Context, source Source, work string) (deb string, err error) {
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return "", err
		}
	}
	list := filepath.Join(work, "sources.list")
	var lines strings.Builder
	for _, suite := range s.Suites {
		lines.WriteString(source.line(suite))
	}
	if err := os.WriteFile(list, []byte(lines.String()), 0o644); err != nil {
		return "", err
	}
	// apt as configured on the machine, but with these sources and all its files here; and as ourselves, as the
	// user _apt that it would change to can't write here.
	options := []string{
		"-q", "-o", "APT::Sandbox::User=root", "-o", "APT::Architecture=amd64", "-o", "Acquire::Languages=none",
		"-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(work, "lists"), "-o", "Dir::Cache=" + filepath.Join(work, "cache"),
	}
	apt := func(tool string, args ...string) (string, error) {
		cmd := command(ctx, tool, append(slices.Clone(options), args...)...)
		cmd.Dir = filepath.Join(work, "debs")
		return output(cmd)
	}
	if _, err := apt("apt-get", "update"); err != nil {
		return "", err
	}
	names, err := apt("apt-cache", "pkgnames", "linux-image-"+s.Name)
	if err != nil {
		return "", err
	}
	name := newest(strings.Fields(names), regexp.MustCompile(s.Package))
	if name == "" {
		return "", fmt.Errorf("find kernel %s: %w in %s of the archive", s.Name, ErrNoKernel, strings.Join(s.Suites, " and "))
	}
	if _, err := apt("apt-get", "download", name); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(work, "debs", name+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("download %s: %d packages came", name, len(debs))
	}
	return debs[0], nil
}

// newest returns the name with the largest number where the pattern has its group, "" if none fits.
func newest(names []string, pattern *regexp.Regexp) string {
	best, most := "", -1
	for _, name := range names {
		if match := pattern.FindStringSubmatch(name); match != nil {
			if n, err := strconv.Atoi(match[1]); err == nil && n > most {
				best, most = name, n
			}
		}
	}
	return best
}
