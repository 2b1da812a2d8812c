ATTRIBUTES: dict = {}


def run(x, index):
    return x[index.long()]
