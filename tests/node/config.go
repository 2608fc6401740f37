package node

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// The names of the two images. They are the hog both, pause being one of its commands.
const (
	PauseImage = "localhost/pause:1"
	HogImage   = "localhost/hog:1"
)

// namespace is containerd's name for what CRI sees.
const namespace = "k8s.io"

// containerdConfig is the configuration file. Everything that containerd would put elsewhere is moved below
// dir, except the shims' sockets, whose place is compiled in. Paths are quoted as Go does, which is TOML for
// what a path may hold.
func containerdConfig(dir string, b Binaries, snapshotter string, restrictOOMScore bool, driver Driver) string {
	q := func(elem ...string) string { return strconv.Quote(filepath.Join(append([]string{dir}, elem...)...)) }
	return fmt.Sprintf(`version = 2
root = %s
state = %s
# Bound to processes, containers and files of this node alone: no plugin that sets up the machine.
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
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE nobody may lower an OOM score, and runc dies of trying to.
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
`, q("root"), q("state"), q(socketName), q("debug.sock"), PauseImage, restrictOOMScore,
		q("cni/bin"), q("cni/net.d"), snapshotter, b.Runc, q("runc"), driver == Systemd)
}
