package node

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// The names of the two images. Both run the hog, which has a pause command.
const (
	PauseImage = "localhost/pause:1"
	HogImage   = "localhost/hog:1"
)

// namespace is the containerd namespace that CRI uses.
const namespace = "k8s.io"

// containerdConfig returns the configuration file. All files of containerd are below dir, except the shims' sockets,
// whose directory is compiled in. Paths are quoted as Go strings, which is valid TOML for every path used here.
func containerdConfig(dir string, b Binaries, snapshotter string, restrictOOMScore bool, driver Driver, appArmor bool) string {
	q := func(elem ...string) string { return strconv.Quote(filepath.Join(append([]string{dir}, elem...)...)) }
	return fmt.Sprintf(`version = 2
root = %s
state = %s
# Plugins that would change the machine outside of this node.
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = %s

[debug]
  address = %s
  level = "info"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  disable_apparmor = %t
  # Lowering oom_score_adj needs CAP_SYS_RESOURCE; without it, runc fails.
  restrict_oom_score_adj = %t
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %s
    conf_dir = %s
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = %q
        Root = %s
        SystemdCgroup = %t
`, q("root"), q("state"), q(socketName), q("debug.sock"), PauseImage, !appArmor, restrictOOMScore,
		q("cni/bin"), q("cni/net.d"), snapshotter, b.Runc, q("runc"), driver == Systemd)
}
