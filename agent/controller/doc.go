// Package controller observes nodes, saves fences as NodeFence objects and carries out their orders.
package controller

import _ "sigs.k8s.io/controller-runtime"
