"""Small models with the structure of served ones, for tests: see `glm5`.

    config = glm5.TINY
    plain = glm5.build(config)  # bfloat16, random weights of a seed
    quantized = glm5.quantize(plain, glm5.tokens(config, 256))  # NVFP4
    logits = quantized(ids, positions)  # [T] and [T] to [T, vocabulary]
    glm5.split_at(quantized, "attention", "moe")  # calls operators that compilers can split at

Import from a test as `from models import glm5`, with this folder's parent on the path.
"""
