// One binary for every process of a cluster. It behaves as the program whose name it is
// called by (a link to it), or as its first argument says: `sluice-node kubelet --config=…`.
//
// All components share most of their code, so one link is a third of the size and of the build
// time of nine. It knows nothing of the cluster: flags and files come from the Python harness.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() int{
	"kube-apiserver":          cobraProgram(apiserver.NewAPIServerCommand),
	"kube-controller-manager": cobraProgram(controllers.NewControllerManagerCommand),
	"kube-scheduler":          cobraProgram(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 cobraProgram(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kube-proxy":              cobraProgram(kubeproxy.NewProxyCommand),
	"kubeadm":                 runKubeadm,
	"kubectl":                 runKubectl,
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"coredns":                 runCoreDNS,
}

func cobraProgram(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

// It ends the process itself where it fails.
func runKubeadm() int {
	if err := kubeadm.Run(); err != nil {
		return 1
	}
	return 0
}

// The directives of kubeadm's Corefile and of ours, in CoreDNS's own order.
func runCoreDNS() int {
	dnsserver.Directives = []string{
		"reload", "bind", "ready", "health", "prometheus", "errors", "loadbalance", "cache",
		"kubernetes", "loop", "forward",
	}
	coremain.Run()
	return 0
}

func main() {
	name := filepath.Base(os.Args[0])
	program, found := programs[name]
	if !found && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
		program, found = programs[name]
	}
	if !found {
		names := make([]string, 0, len(programs))
		for known := range programs {
			names = append(names, known)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "unknown program %q; known: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(program())
}
